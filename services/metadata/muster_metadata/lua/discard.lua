-- Removes a copy of a log that came to nothing. KEYS[5]: the copy.
return {'OK', redis.call('DEL', KEYS[5])}
