// Package source reads what jobs name as their inputs from elsewhere: objects of
// servers that speak S3, of Google Cloud Storage and of Azure Blob Storage, files
// by https, and folders of the machine that its operator shares (volumes). It runs
// on machines, so that data does not pass through the control plane.
//
// What there is is found first, and gets an address: of a file its sha256, where
// the job names it, else the hash of a list of what is to be read, with the
// version of each. Only then it is read, and exactly that: what has another
// version or length by then is an error of type Changed. So whatever has the
// same address is the same content, and need not be read again.
//
// Errors say who can do something about them. Refused is the user's: it is not
// there, or may not be read, or breaks a limit. Local is this machine's disk.
// Every other one may pass.
//
// The one rule to know: no error and no address tells anything of the login or of
// where a folder lies on the machine, and none of what a server says is repeated
// but its status and its error code.
package source
