#!lua
-- new_key: the books do not know this key, so that an admit that follows soon need not ask them. Changes nothing of a key that
-- is in use.
--
-- KEYS 1 life  2 idem:<publisher>:<hash>
-- ARGV 1 life  2 how long that is believed, ms
-- Replies {'done'} | {'life'}

if not is_open(KEYS[1], ARGV[1]) then
  return { 'life' }
end
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('HSET', KEYS[2], 'n', '1')
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return { 'done' }
