package berth

import (
	"fmt"
	"path"
)

// Object keys in the blob store. Everything of an attempt lies under a prefix
// of its own, so that a late upload of a superseded attempt overwrites nothing.

// AttemptPrefix is the folder of one member of one attempt.
func AttemptPrefix(tenant TenantID, job JobID, attempt, rank int) string {
	return fmt.Sprintf("tenants/%s/jobs/%s/attempt-%d/rank-%d", tenant, job, attempt, rank)
}

// LogChunkKey is the object that holds a member's log from offset on.
func LogChunkKey(tenant TenantID, job JobID, attempt, rank int, offset int64) string {
	return path.Join(AttemptPrefix(tenant, job, attempt, rank), "logs", fmt.Sprintf("%020d.log", offset))
}

// CheckpointsPrefix is the folder of all checkpoints of one member of one attempt.
func CheckpointsPrefix(tenant TenantID, job JobID, attempt, rank int) string {
	return path.Join(AttemptPrefix(tenant, job, attempt, rank), "checkpoints")
}

// CheckpointKey is the folder of one member's shard of a checkpoint.
func CheckpointKey(tenant TenantID, job JobID, attempt, rank int, step int64) string {
	return path.Join(CheckpointsPrefix(tenant, job, attempt, rank), fmt.Sprintf("step-%d", step))
}

// ManifestName is the last object of a checkpoint's folder to be written.
const ManifestName = "MANIFEST.json"

// MetricsKey is the key of the object with the measurements of one member.
func MetricsKey(tenant TenantID, job JobID, attempt, rank int) string {
	return path.Join(AttemptPrefix(tenant, job, attempt, rank), "metrics.json")
}

// OutputSuffix ends the keys of outputs, and no key of a folder.
const OutputSuffix = ".tar.zst"

// OutputKey is the object that holds an output of one member of one attempt.
func OutputKey(tenant TenantID, job JobID, attempt, rank int, name string) string {
	return path.Join(AttemptPrefix(tenant, job, attempt, rank), "outputs", name+OutputSuffix)
}

// UploadFolder is the folder of one stored copy of an upload. Each has a random
// part, so that removing an old copy never meets a new one.
func UploadFolder(tenant TenantID, a Address, random string) string {
	return path.Join("tenants", string(tenant), "uploads", a.Hex(), random)
}

// ArchiveName is the object in the folder of an upload.
const ArchiveName = "archive.tar.zst"

// LogRef names the log of one member in one attempt.
type LogRef struct {
	Tenant  TenantID
	Job     JobID
	Attempt int
	Rank    int
}
