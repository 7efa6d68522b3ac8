// Package fusetest is a file server for tests that can stop answering, as the server of a network file
// system does when it dies: processes that wait for it are in a sleep that no signal ends. It speaks
// the kernel's protocol of FUSE and serves one folder with one file.
package fusetest
