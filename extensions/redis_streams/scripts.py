"""A writer's operations on the Redis server, as atomic and idempotent scripts.

The hash `writer` of a stream contains `holder`, the name of the connection that may write, and `end`, the
offset after the newest record.
"""

# KEYS: writer, names. ARGV: holder to replace ('' = none), new holder, name of the stream.
# Returns the offset of the end, or null if another connection has become the holder meanwhile.
CLAIM = """
local holder = redis.call('HGET', KEYS[1], 'holder') or ''
if holder ~= ARGV[1] and holder ~= ARGV[2] then return false end
redis.call('HSET', KEYS[1], 'holder', ARGV[2])
redis.call('HSETNX', KEYS[1], 'end', '0')
redis.call('SADD', KEYS[2], ARGV[3])
return redis.call('HGET', KEYS[1], 'end')
"""

# KEYS: stream, writer. ARGV: holder, offset before, offset after, record, offset before which to trim.
# Returns the holder and the end afterwards. If they are not the caller's, nothing was written.
APPEND = """
local holder, reached = unpack(redis.call('HMGET', KEYS[2], 'holder', 'end'))
if holder == ARGV[1] and reached == ARGV[2] then
    redis.call('XADD', KEYS[1], ARGV[3] .. '-0', 'record', ARGV[4])
    redis.call('HSET', KEYS[2], 'end', ARGV[3])
    redis.call('XTRIM', KEYS[1], 'MINID', ARGV[5] .. '-1')
    reached = ARGV[3]
end
return {holder, reached}
"""

# KEYS: stream, writer. ARGV: holder, offset before which to trim. Returns the holder, as in APPEND.
TRIM = """
local holder = redis.call('HGET', KEYS[2], 'holder')
if holder == ARGV[1] then redis.call('XTRIM', KEYS[1], 'MINID', ARGV[2] .. '-1') end
return holder
"""
