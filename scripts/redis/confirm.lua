#!lua flags=allow-oom
-- confirm: an operator says that the buyer has the lead; the unit that is still counted stays so. One that has gone back is
-- not charged again: somebody else may have it by now (P1).
-- KEYS, ARGV and replies: ending.lua. States: open, doubt.

return finish(KEYS, ARGV, 'committed', { 'open', 'doubt' })
