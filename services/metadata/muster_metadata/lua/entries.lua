-- Entries from ARGV[4] to ARGV[7], at most ARGV[5] of them; the last one is the one with which they have ARGV[6] bytes.
-- Reads only.
local missing = absent()
if missing then return missing end
local answer, from, left, room = {'OK'}, ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
while left > 0 and room > 0 do
  -- Few at a time: all that is read at once is in memory twice, however large it is.
  local found = redis.call('XRANGE', log, from, ARGV[7], 'COUNT', math.min(left, 4))
  for _, entry in ipairs(found) do
    if room > 0 then
      answer[#answer + 1] = entry
      room = room - #(entry[2][2] or '')
    end
  end
  if #found == 0 then break end
  from, left = '(' .. found[#found][1], left - #found
end
return answer
