#!lua flags=allow-oom
-- restate_lead: a lead that its gateway has admitted under an older life, with its claim; and its "received", unless the books
-- have it. Changes nothing of a lead that has its answer.
--
-- KEYS 1 life  2 record: idem:<publisher>:<hash>, or lead:<publisher>:<lead> for a lead without a claim
--      3 lead:<publisher>:<lead>  4 open  5 open_info  6 journal:<life>
-- ARGV 1 life  2 lead  3 claim hash or ''  4 fingerprint or ''  5 deadline ms, and not before so many ms from now: 6
--      7 record expires at ms  8 open info  9 event or ''
-- Replies {'done', entry id or ''} | {'life'}

if not is_here(KEYS[1], ARGV[1]) then
  return { 'life' }
end
local record = redis.call('HMGET', KEYS[2], 'l', 'a')
local own = redis.call('HGET', KEYS[3], 'a')
redis.call('XLEN', KEYS[6])
redis.call('HLEN', KEYS[5])

if not own and not (record[1] == ARGV[2] and record[2]) then
  local earliest = now_ms() + tonumber(ARGV[6])
  redis.call('ZADD', KEYS[4], ms_text(math.max(earliest, tonumber(ARGV[5]))), ARGV[2])
  redis.call('HSET', KEYS[5], ARGV[2], ARGV[8])
  if record[1] and record[1] ~= ARGV[2] then
    -- The key belongs to another lead by now.
    redis.call('HSET', KEYS[3], 'l', ARGV[2])
  else
    redis.call('HSET', KEYS[2], 'l', ARGV[2], 'f', ARGV[4])
    redis.call('PEXPIREAT', KEYS[2], ARGV[7])
    if KEYS[3] ~= KEYS[2] then
      redis.call('HSET', KEYS[3], 'c', ARGV[3])
    end
  end
  redis.call('PEXPIREAT', KEYS[3], ARGV[7])
end
return { 'done', ARGV[9] ~= '' and append(KEYS[6], ARGV[9], '') or '' }
