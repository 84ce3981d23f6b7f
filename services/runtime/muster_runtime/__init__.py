"""What every process of Muster needs: settings, clocks, logs, the RPC server, channels, the cluster view."""
