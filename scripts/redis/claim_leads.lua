#!lua flags=allow-oom
-- claim_leads: takes over open leads whose deadline has passed, by moving it. Two callers never get the same lead.
--
-- KEYS 1 open  2 open_info
-- ARGV 1 grace ms  2 new deadline, ms from now  3 most leads
-- Reply   {lead, open info or '', lead, open info or '', ...}

local now, reply = now_ms(), {}
local leads = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ms_text(now - tonumber(ARGV[1])), 'LIMIT', 0, ARGV[3])
redis.call('HLEN', KEYS[2])
for _, lead in ipairs(leads) do
  redis.call('ZADD', KEYS[1], ms_text(now + tonumber(ARGV[2])), lead)
  reply[#reply + 1] = lead
  reply[#reply + 1] = redis.call('HGET', KEYS[2], lead) or ''
end
return reply
