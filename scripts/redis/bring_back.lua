#!lua flags=allow-oom
-- bring_back: a lead as the books know it: its claim and its answer; or, while it is pending, that it is open, so that
-- recovery finishes it. What is known of lead and key stays.
--
-- KEYS 1 life  2 record: idem:<publisher>:<hash>, or lead:<publisher>:<lead> for a lead without a claim
--      3 lead:<publisher>:<lead>  4 open  5 open_info
-- ARGV 1 life  2 lead  3 claim hash or ''  4 fingerprint or ''  5 answer, '' while it is pending  6 open info
--      7 record expires at ms
-- Replies {'done'} | {'life'}

if not is_here(KEYS[1], ARGV[1]) then
  return { 'life' }
end
local record = redis.call('HMGET', KEYS[2], 'l', 'a')
local own = redis.call('HGET', KEYS[3], 'a')
local is_pending = ARGV[5] == '' and not own and not (record[1] == ARGV[2] and record[2])
redis.call('HLEN', KEYS[5])

if is_pending and not redis.call('ZSCORE', KEYS[4], ARGV[2]) then
  redis.call('ZADD', KEYS[4], ms_text(now_ms()), ARGV[2])
  redis.call('HSET', KEYS[5], ARGV[2], ARGV[6])
end
if not record[1] and tonumber(ARGV[7]) > now_ms() then
  redis.call('HSET', KEYS[2], 'l', ARGV[2], 'f', ARGV[4])
  if ARGV[5] ~= '' then
    redis.call('HSET', KEYS[2], 'a', ARGV[5])
  end
  redis.call('PEXPIREAT', KEYS[2], ARGV[7])
  if KEYS[3] ~= KEYS[2] then
    redis.call('HSET', KEYS[3], 'c', ARGV[3])
    redis.call('PEXPIREAT', KEYS[3], ARGV[7])
  end
end
return { 'done' }
