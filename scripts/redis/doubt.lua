#!lua flags=allow-oom
-- doubt: the buyer may have the lead; the unit stays counted. Only an open lease can become a doubt.
-- KEYS, ARGV and replies: ending.lua. States: open.

return finish(KEYS, ARGV, 'doubt', { 'open' })
