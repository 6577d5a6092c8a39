#!lua flags=allow-oom
-- park: moves the deadline of an open lead, which is when recovery takes it over: as long as a buyer may take to decide, and to
-- the present when it has decided. Asked twice it appends its event twice, which the books do not mind.
--
-- KEYS 1 life  2 open  3 journal:<life>
-- ARGV 1 life  2 lead  3 new deadline ms  4 only from this deadline ms, '' for any  5 event or ''
-- Replies {'moved', entry id or ''} | {'other'} the lead is not open, or its deadline is another one | {'life'}

if not is_here(KEYS[1], ARGV[1]) then
  return { 'life' }
end
local deadline = redis.call('ZSCORE', KEYS[2], ARGV[2])
redis.call('XLEN', KEYS[3])
local is_it = deadline and (ARGV[4] == '' or tonumber(deadline) == tonumber(ARGV[4]) or tonumber(deadline) == tonumber(ARGV[3]))
if not is_it then
  return { 'other' }
end
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2])
return { 'moved', ARGV[5] ~= '' and append(KEYS[3], ARGV[5], '') or '' }
