-- What the node holds of a log. Reads only.
local reason, _, held_nonce, text, floor, mark = abstention()
if reason then return reason end
local id, hash = last_entry()
return {
  'OK', id, hash, acknowledged_id() or '0-1', text, held_nonce, first_id(), redis.call('XLEN', log),
  string.format('%d', floor), mark or '',
}
