package dbtest

// OnceUnused is onceUnused.
var OnceUnused = onceUnused
