-- Shared by seed and reconcile; stands after the prelude. What stands between settled usage and a counter (P2): effects of
-- journal entries after the mark, and what open leases hold.
--
-- `changes` holds a list of signed decimals per counter, by "<buyer>|<cap>|<window start>"; what has no list is not wanted.

local PAGE = 200

-- Was the journal trimmed beyond the mark? Then what lies between is in newer usage only.
local function is_trimmed_beyond(trimmed_key, mark)
  local trimmed = redis.call('GET', trimmed_key)
  return trimmed and not id_le(trimmed, mark)
end

-- Adds the effects of entries after the mark; false when there are more than `most`.
local function read_tail(journal, mark, most, changes)
  local from, left = '(' .. mark, most
  while true do
    local page = redis.call('XRANGE', journal, from, '+', 'COUNT', PAGE)
    left = left - #page
    if left < 0 then
      return false
    end
    for _, entry in ipairs(page) do
      local fields = entry[2]
      if fields[3] == 'fx' then
        for name, change in fields[4]:gmatch('([^;]+)|(%-?%d+)') do
          local wanted = changes[name]
          if wanted then
            wanted[#wanted + 1] = change
          end
        end
      end
    end
    if #page < PAGE then
      return true
    end
    from = '(' .. page[#page][1]
  end
end

-- Adds what a buyer's open leases hold.
local function read_leases(leases, buyer, changes)
  for _, record in ipairs(redis.call('HVALS', leases)) do
    local charges = record:match('^[^\n]*\n[^\n]*\n[^\n]*\n([^\n]*)\n')
    for cap, start, amount in charges:gmatch('([^|;]+)|(%d+)|%d*|(%d+)') do
      local wanted = changes[buyer .. '|' .. cap .. '|' .. start]
      if wanted then
        wanted[#wanted + 1] = amount
      end
    end
  end
end
