"""The logs of the shards, as their owner reaches them through the metadata service.

`log_client` is the one stream that the batches of all shards share; `shard_log` is the end of one log,
`loader` its beginning. The nodes themselves are known to `muster_metadata` alone.
"""
