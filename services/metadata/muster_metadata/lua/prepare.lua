-- Raises the promise. ARGV[4]: tag of the attempt; empty: any attempt of this claim.
-- Two instances that carry out one claim at once share epoch and nonce; the tag keeps them from
-- counting each other's promises. ARGV[5]: the claim's own epoch is above this, so a Claim of its nonce can only
-- be above it too; empty: the log is not searched for one.
local function spent(above)
  local id = last_entry()
  while id do
    local entry_epoch = parts(id)
    if entry_epoch <= above then return false end
    -- The Claim is the first entry of its epoch.
    local first = redis.call('XRANGE', log, string.format('%d-0', entry_epoch), '+', 'COUNT', 1)[1]
    if first[2][4] == nonce then return true end
    local before = redis.call('XREVRANGE', log, '(' .. first[1], '-', 'COUNT', 1)[1]
    id = before and before[1]
  end
  return false
end

local reason, held, held_nonce, _, floor, mark = abstention()
if reason then return reason end
local same = held == epoch and held_nonce == nonce
  and (ARGV[4] == '' or redis.call('HGET', promise, 'tag') == ARGV[4])
if math.max(held, floor) >= epoch and not same then
  return {'PROMISED', string.format('%d', math.max(held, floor))}
end
if ARGV[5] ~= '' and not same and spent(tonumber(ARGV[5])) then
  return {'SPENT', string.format('%d', math.max(held, floor))}
end
if not same then
  pass()
  redis.call('HSET', promise, 'epoch', ARGV[2], 'nonce', nonce, 'tag', ARGV[4])
  note_run(mark)
end
local id, hash = last_entry()
local upto = acknowledged_id() or '0-1'
return {'OK', id, hash, upto, mark or '', hash_at(upto) or ''}
