package webhook

// Sign is for tests that verify calls.
var Sign = sign
