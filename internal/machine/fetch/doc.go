// Package fetch downloads the inputs of jobs: objects of S3 servers, of Google Cloud
// Storage and of Azure Blob Storage, files by https, and folders of the machine
// that its operator shares (volumes). It runs on machines, so that data does not
// pass through the control plane.
//
// Fetching has two steps. Find resolves an input to an address: the sha256 of a
// file, where the job names it, else the hash of the list of objects with the
// version of each. Reading then accepts exactly those versions and lengths;
// anything else is an error of type Changed. Equal addresses mean equal content,
// which need not be read again.
//
// Errors name who can act on them. Refused is the user's: the input does not exist,
// must not be read, or exceeds a limit. Local is this machine's disk. Any other
// error may pass.
//
// The one rule to know: errors and addresses contain no credentials and no path of
// the machine, and of a server's answer only its status and error code.
package fetch
