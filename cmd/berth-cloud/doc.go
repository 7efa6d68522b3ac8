// Command berth-cloud creates, finds, lists and terminates machines of a cloud. berthd runs it once
// for each call, with a request on standard input, and reads the answer from standard output; see
// docs/operate/cloud-exec.md.
//
// Only this program links the SDKs of clouds, and berthd never has the credentials of clouds (adr/0065,
// adr/0074).
package main
