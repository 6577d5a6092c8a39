#!lua flags=allow-oom
-- return: a buyer gives a sold lead back. The windows of the sale that were given get their units back; without any only the
-- event is appended. Never creates a counter, never goes below zero, never changes an expiry (F01, F07).
--
-- KEYS 1 life  2 returned:<lead>:<buyer>  3 journal:<life>  4.. one counter per window
-- ARGV 1 life  2 not_after ms  3 time to live of the second key ms  4 event  5 effects for the journal
--      then per counter the units that go back
-- Replies {'done', entry id}
--         {'already', newest entry}  it was returned before, maybe by an earlier try of this very call (F20)
--         {'late'}                   not_after has passed: the caller's knowledge may be older than the second key can tell
--         {'life'}                   the data is of another life, or closed

if not is_open(KEYS[1], ARGV[1]) then
  return { 'life' }
end
if redis.call('EXISTS', KEYS[2]) == 1 then
  return { 'already', newest(KEYS[3]) }
end
if now_ms() > tonumber(ARGV[2]) then
  return { 'late' }
end
local used = counts_from(KEYS, 4, #KEYS)
redis.call('XLEN', KEYS[3])

-- First, because it was not read as what it is: were it broken, nothing would have been written (F06).
redis.call('SET', KEYS[2], '1', 'PX', ARGV[3])
for c = 4, #KEYS do
  -- A counter that is gone belongs to a finished window, or waits for a seed that will read this event.
  if used[c] then
    lower(KEYS[c], used[c], ARGV[c + 2])
  end
end
return { 'done', append(KEYS[3], ARGV[4], ARGV[5]) }
