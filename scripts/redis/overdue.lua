#!lua flags=no-writes
-- overdue: names of open leases whose deadline has passed by the server's clock, oldest first.
--
-- KEYS 1 life  2 due
-- ARGV 1 life  2 most leases
-- Reply   {"<lead>:<buyer>", ...}; none while the partition is closed, because their owners may still say how they ended

if not is_open(KEYS[1], ARGV[1]) then
  return {}
end
return redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ms_text(now_ms()), 'LIMIT', 0, ARGV[2])
