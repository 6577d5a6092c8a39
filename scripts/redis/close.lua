#!lua flags=allow-oom
-- close: gives a lead its answer, once; the first call wins. One publisher's partition.
--
-- KEYS 1 life  2 record: idem:<publisher>:<hash>, or lead:<publisher>:<lead> for a lead without a claim
--      3 lead:<publisher>:<lead>  4 open  5 open_info  6 journal:<life>
-- ARGV 1 life  2 lead  3 claim hash or ''  4 fingerprint or ''  5 retention ms  6 answer  7 event
-- Replies {'closed', entry id} | {'already', answer, newest entry} | {'life'}

if not is_here(KEYS[1], ARGV[1]) then
  return { 'life' }
end
local answer, holder = answer_of(KEYS[2], KEYS[3], ARGV[2])
if answer then
  return { 'already', answer, newest(KEYS[6]) }
end
redis.call('XLEN', KEYS[6])
redis.call('HLEN', KEYS[5])

redis.call('ZREM', KEYS[4], ARGV[2])
redis.call('HDEL', KEYS[5], ARGV[2])
if holder and holder ~= ARGV[2] then
  -- After a loss the key can belong to another lead by now; this lead's answer then stands under its own name.
  redis.call('HSET', KEYS[3], 'l', ARGV[2], 'a', ARGV[6])
else
  redis.call('HSET', KEYS[2], 'l', ARGV[2], 'f', ARGV[4], 'a', ARGV[6])
  redis.call('PEXPIRE', KEYS[2], ARGV[5])
  if KEYS[3] ~= KEYS[2] then
    redis.call('HSET', KEYS[3], 'c', ARGV[3])
  end
end
redis.call('PEXPIRE', KEYS[3], ARGV[5])
return { 'closed', redis.call('XADD', KEYS[6], '*', 'e', ARGV[7]) }
