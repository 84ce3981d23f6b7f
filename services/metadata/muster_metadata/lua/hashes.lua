-- Ids and hashes of up to ARGV[5] entries at or before ARGV[4], the latest first. Reads only.
local missing = absent()
if missing then return missing end
local answer = {'OK'}
for _, entry in ipairs(redis.call('XREVRANGE', log, ARGV[4], '-', 'COUNT', ARGV[5])) do
  answer[#answer + 1] = entry[1]
  answer[#answer + 1] = entry[2][6]
end
return answer
