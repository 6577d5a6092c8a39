#!lua flags=allow-oom
-- expire: the outcome is unknown, and the unit goes back by the operator's choice. Only an open lease can expire: what
-- recovery has made a doubt stays counted until an answer or an operator ends it.
-- KEYS, ARGV and replies: ending.lua. States: open.

return finish(KEYS, ARGV, 'refunded', { 'open' })
