#!lua flags=allow-oom
-- forget_lease: drops an open lease of older data whose end the books know. Only while the partition is closed, when it stands
-- in no counter.
--
-- KEYS 1 life  2 leases:<buyer>  3 due
-- ARGV 1 life  2 lead  3 buyer
-- Replies {'done'} | {'life'}

local number, here, state = standing(KEYS[1])
if number ~= ARGV[1] or not here or state ~= 'closed' then
  return { 'life' }
end
redis.call('ZREM', KEYS[3], ARGV[2] .. ':' .. ARGV[3])
redis.call('HDEL', KEYS[2], ARGV[2])
return { 'done' }
