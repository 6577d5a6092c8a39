#!lua flags=allow-oom
-- reconcile: compares counters of one partition with settled usage + effects of journal entries after the mark + what open
-- leases hold, all read in this one step, and takes a difference out of its counter where it is the one that was given.
-- Never creates a counter and never changes an expiry; with no difference given it writes nothing.
--
-- KEYS 1 life  2 journal:<life>  3 trimmed:<life>  4.. leases:<buyer> per buyer, then one counter each
-- ARGV 1 life  2 mark's entry id  3 most entries to read  4 number of buyers, then each buyer
--      then per counter: buyer, cap, window start ms, usage, difference that may be taken out or ''
-- Replies {'compared', per counter: counter or '', expected, '1' when the difference was taken out else '0'}
--         {'stale'}   the journal was trimmed beyond the mark
--         {'long'}    too many entries after the mark
--         {'life'}
-- Has allow-oom, because a counter that is too low oversells also while memory is short.

if not is_open(KEYS[1], ARGV[1]) then
  return { 'life' }
end
if is_trimmed_beyond(KEYS[3], ARGV[2]) then
  return { 'stale' }
end

-- Sums are kept as two halves, because a Lua number loses digits above 2^53 (F15): {how many BASE, rest}.
local BASE = 1000000000

local function add(sum, text, sign)
  if text:sub(1, 1) == '-' then
    text, sign = text:sub(2), -sign
  end
  local cut = #text - 9
  if cut > 0 then
    sum[1] = sum[1] + sign * tonumber(text:sub(1, cut))
    text = text:sub(cut + 1)
  end
  sum[2] = sum[2] + sign * tonumber(text)
end

local function text_of(sum)
  local carry = math.floor(sum[2] / BASE)
  local high, low, minus = sum[1] + carry, sum[2] - carry * BASE, ''
  if high < 0 then
    minus = '-'
    if low == 0 then
      high = -high
    else
      high, low = -high - 1, BASE - low
    end
  end
  if high == 0 then
    return minus .. string.format('%.0f', low)
  end
  return minus .. string.format('%.0f%09.0f', high, low)
end

local buyers = tonumber(ARGV[4])
local first_key, first_arg = 3 + buyers, 4 + buyers
local count = #KEYS - first_key

local changes, names = {}, {}
for c = 1, count do
  local a = first_arg + (c - 1) * 5
  names[c] = ARGV[a + 1] .. '|' .. ARGV[a + 2] .. '|' .. ARGV[a + 3]
  changes[names[c]] = { ARGV[a + 4] }
end
if not read_tail(KEYS[2], ARGV[2], tonumber(ARGV[3]), changes) then
  return { 'long' }
end
for b = 1, buyers do
  read_leases(KEYS[3 + b], ARGV[4 + b], changes)
end

local reply, repairs = { 'compared' }, {}
for c = 1, count do
  local key, repair = KEYS[first_key + c], ARGV[first_arg + c * 5]
  local used, sum, is_repaired = redis.call('GET', key), { 0, 0 }, '0'
  for _, change in ipairs(changes[names[c]]) do
    add(sum, change, 1)
  end
  local expected = text_of(sum)
  if expected:sub(1, 1) == '-' then
    expected = '0'
  end
  if used then
    local difference = { 0, 0 }
    add(difference, checked_count(used), 1)
    add(difference, expected, -1)
    difference = text_of(difference)
    if difference ~= '0' and difference == repair then
      repairs[#repairs + 1] = { key, difference }
      is_repaired = '1'
    end
  end
  reply[#reply + 1] = used or ''
  reply[#reply + 1] = expected
  reply[#reply + 1] = is_repaired
end

for _, repair in ipairs(repairs) do
  -- The server adds: 64 bits, exact. A repair that is repeated finds no difference any more (F20).
  redis.call('DECRBY', repair[1], repair[2])
end
return reply
