#!lua flags=allow-oom
-- give_back: marks an open lease so that recovery gives its unit back when the deadline passes.
--
-- KEYS 1 leases:<buyer>
-- ARGV 1 lead
-- Replies 1 marked (or was marked), 0 the lease is not open

local record = redis.call('HGET', KEYS[1], ARGV[1])
if not record then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[1], '1' .. record:sub(2))
return 1
