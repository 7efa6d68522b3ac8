package kernellog

// OutOfMemory looks through the records that read gives.
var OutOfMemory = outOfMemory
