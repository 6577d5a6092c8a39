#!lua flags=allow-oom
-- restate_end: how a lease ended under an older life: its end mark, and its event with its effects. The books know an event
-- that they have met before. Of two ends the one that the other can turn into stays. A counter that is there already (the
-- gateway comes after the partition was opened) is raised by what the end counts; one too many is found by reconciliation, one
-- too few would oversell (P1).
--
-- KEYS 1 life  2 lease:<lead>:<buyer> (end mark)  3 leases:<buyer>  4 due  5 journal:<life>  6.. one counter per charge,
--      and where 8 says something dup:<buyer>:<digest>
-- ARGV 1 life  2 lead  3 buyer  4 state: doubt, refunded or committed  5 end mark's time to live ms  6 event  7 effects
--      8 what becomes of the person's mark: keep, free or ''  9 since when, ms  10 when the mark expires, ms
--      then per counter: amount as it was taken, effect on usage (signed)
-- Replies {'done', entry id} | {'life'}

if not is_here(KEYS[1], ARGV[1]) then
  return { 'life' }
end
local RANK = { doubt = 1, refunded = 2, committed = 3 }
local record = redis.call('HEXISTS', KEYS[3], ARGV[2]) == 1
local mark = redis.call('GET', KEYS[2])
local state = mark and mark:match('^%a+')
local counters_end = ARGV[8] ~= '' and #KEYS - 1 or #KEYS
local used = counts_from(KEYS, 6, counters_end)
redis.call('XLEN', KEYS[5])

if record then
  redis.call('ZREM', KEYS[4], ARGV[2] .. ':' .. ARGV[3])
  redis.call('HDEL', KEYS[3], ARGV[2])
end
for c = 6, counters_end do
  if used[c] then
    local amount, effect = ARGV[2 * c - 1], ARGV[2 * c]
    if (record or not mark) and effect:sub(1, 1) ~= '-' then
      redis.call('INCRBY', KEYS[c], effect)
    end
    if record then
      lower(KEYS[c], used[c], amount)
    end
  end
end
if not state or (RANK[state] or 0) < RANK[ARGV[4]] then
  redis.call('SET', KEYS[2], ARGV[4] .. '||', 'PX', ARGV[5])
end
if ARGV[8] ~= '' then
  note_person(KEYS[#KEYS], ARGV[1], ARGV[2], ARGV[8], ARGV[9], ARGV[10])
end
return { 'done', append(KEYS[5], ARGV[6], ARGV[7]) }
