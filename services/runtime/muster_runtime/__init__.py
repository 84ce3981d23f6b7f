"""What every process of Muster needs: settings, clocks, logs, the RPC server, channels, the cluster view.

Modules of this folder stand alone, and each role takes those that it needs; what belongs together is in
`cluster`, `rpc` and `telemetry`.
"""
