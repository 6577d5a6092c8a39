#!lua flags=no-writes
-- overdue: names of open leases whose deadline has passed by the server's clock, oldest first.
--
-- KEYS 1 due
-- ARGV 1 most leases
-- Reply   {"<lead>:<buyer>", ...}

return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ms_text(now_ms()), 'LIMIT', 0, ARGV[1])
