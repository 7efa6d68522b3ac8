package check

// Never is what no outcome may be charged to.
var Never = never
