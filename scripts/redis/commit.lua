#!lua flags=allow-oom
-- commit: the buyer has the lead; the unit counts. After a refund it is charged again, even above the limit; after a doubt
-- only a difference in price is.
-- KEYS, ARGV and replies: ending.lua. States: open, refunded, doubt.

return finish(KEYS, ARGV, 'committed', { 'open', 'refunded', 'doubt' })
