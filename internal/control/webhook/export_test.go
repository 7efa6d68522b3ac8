package webhook

// Sign is for tests that verify calls.
var Sign = sign

// RecordTime is for tests of how long a call is its sender's.
const RecordTime = recordTime
