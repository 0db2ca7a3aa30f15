"""Getting jobs into the store: sessions, options, batching, handles, the blocking face. Internal; knows no worker."""
