#!lua flags=allow-oom
-- claim_leads: takes over open leads whose deadline has passed, by moving it. Two callers never get the same lead.
--
-- KEYS 1 life  2 open  3 open_info
-- ARGV 1 life  2 grace ms  3 new deadline, ms from now  4 most leads
-- Reply   {lead, open info or '', lead, open info or '', ...}; none while the partition is closed, because its open leads are
--         not complete before their gateways have restated them

local now, reply = now_ms(), {}
if not is_open(KEYS[1], ARGV[1]) then
  return reply
end
local leads = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ms_text(now - tonumber(ARGV[2])), 'LIMIT', 0, ARGV[4])
redis.call('HLEN', KEYS[3])
for _, lead in ipairs(leads) do
  redis.call('ZADD', KEYS[2], ms_text(now + tonumber(ARGV[3])), lead)
  reply[#reply + 1] = lead
  reply[#reply + 1] = redis.call('HGET', KEYS[3], lead) or ''
end
return reply
