#!lua flags=allow-oom
-- restate_versions: the newest routing that buyers were used with, as a gateway knows it. After a loss an older one must grant
-- no more than before it (P1, F86).
--
-- KEYS 1 life  2 versions
-- ARGV 1 life; then per buyer: buyer, routing version
-- Replies {'done'} | {'life'}

if not is_here(KEYS[1], ARGV[1]) then
  return { 'life' }
end
for i = 2, #ARGV, 2 do
  local known = redis.call('HGET', KEYS[2], ARGV[i])
  if not known or not le(ARGV[i + 1], known) then
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  end
end
return { 'done' }
