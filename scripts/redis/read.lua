#!lua flags=no-writes
-- read: journal entries after a place, in order. Only on the server that the life was begun on, so that a mark is always about
-- one journal: two primaries would otherwise move it past each other's entries (F23).
--
-- KEYS 1 life  2 journal:<life>
-- ARGV 1 life  2 entry id  3 most entries
-- Replies {'entries', {{id, {field, value, ...}}, ...}} | {'life'}

if not is_here(KEYS[1], ARGV[1]) then
  return { 'life' }
end
return { 'entries', redis.call('XRANGE', KEYS[2], '(' .. ARGV[2], '+', 'COUNT', ARGV[3]) }
