#!lua flags=allow-oom
-- open_life: everything that was known under older lives is restated and settled; from here on the partition grants.
--
-- KEYS 1 life
-- ARGV 1 life
-- Replies {'open'} | {'life'}

if not is_here(KEYS[1], ARGV[1]) then
  return { 'life' }
end
redis.call('SET', KEYS[1], ARGV[1] .. '|' .. server() .. '|open')
return { 'open' }
