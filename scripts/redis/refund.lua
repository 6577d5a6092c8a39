#!lua flags=allow-oom
-- refund: the unit goes back to the window it was charged to. Never creates a counter, never goes below zero, never changes an
-- expiry (F01, F07). Ends a doubt, too; changes nothing after a commit.
-- KEYS, ARGV and replies: ending.lua. States: open, doubt.

return finish(KEYS, ARGV, 'refunded', { 'open', 'doubt' })
