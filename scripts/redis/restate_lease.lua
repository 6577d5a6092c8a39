#!lua flags=allow-oom
-- restate_lease: a lease that its gateway took under an older life and has not ended. One that the data knows as ended stays
-- so. A counter that is there already (the gateway comes after the partition was opened) is raised with it (P2).
--
-- KEYS 1 life  2 lease:<lead>:<buyer> (end mark)  3 leases:<buyer>  4 due  5.. one counter per charge, and
--      where 7 says something dup:<buyer>:<digest>
-- ARGV 1 life  2 lead  3 buyer  4 record  5 deadline ms, and not before so many ms from now: 6
--      7 what becomes of the person's mark: keep or ''  8 since when, ms  9 when the mark expires, ms  10.. amount per charge
-- Replies {'done'} | {'ended'} | {'life'}

if not is_here(KEYS[1], ARGV[1]) then
  return { 'life' }
end
if redis.call('EXISTS', KEYS[2]) == 1 then
  return { 'ended' }
end
local is_known = redis.call('HEXISTS', KEYS[3], ARGV[2]) == 1
local counters_end = ARGV[7] ~= '' and #KEYS - 1 or #KEYS
local used = counts_from(KEYS, 5, counters_end)

local earliest = now_ms() + tonumber(ARGV[6])
redis.call('ZADD', KEYS[4], ms_text(math.max(earliest, tonumber(ARGV[5]))), ARGV[2] .. ':' .. ARGV[3])
redis.call('HSET', KEYS[3], ARGV[2], ARGV[4])
for c = 5, counters_end do
  if used[c] and not is_known then
    redis.call('INCRBY', KEYS[c], ARGV[c + 5])
  end
end
if ARGV[7] ~= '' then
  note_person(KEYS[#KEYS], ARGV[1], ARGV[2], ARGV[7], ARGV[8], ARGV[9])
end
return { 'done' }
