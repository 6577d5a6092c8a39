#!lua flags=allow-oom
-- read_back: writes down up to which place leads have been read back from the books, or that all have.
--
-- KEYS 1 life  2 unread
-- ARGV 1 life  2 place, '' when nothing is left
-- Replies {'done'} | {'life'}

if not is_here(KEYS[1], ARGV[1]) then
  return { 'life' }
end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[2])
elseif redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('SET', KEYS[2], ARGV[2])
end
return { 'done' }
