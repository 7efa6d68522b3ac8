package berth

import (
	"fmt"
	"path"
)

// Object keys in the blob store. All objects of an attempt lie under a prefix of the
// attempt, so that a late upload of a superseded attempt cannot overwrite newer data.

// AttemptPrefix returns the folder of one member of one attempt.
func AttemptPrefix(tenant TenantID, job JobID, attempt, rank int) string {
	return fmt.Sprintf("tenants/%s/jobs/%s/attempt-%d/rank-%d", tenant, job, attempt, rank)
}

// LogChunkKey returns the key of the object with a member's log from offset on, in bytes.
// Keys of one member sort by offset.
func LogChunkKey(tenant TenantID, job JobID, attempt, rank int, offset int64) string {
	return path.Join(AttemptPrefix(tenant, job, attempt, rank), "logs", fmt.Sprintf("%020d.log", offset))
}

// CheckpointsPrefix returns the folder of all checkpoints of one member of one attempt.
func CheckpointsPrefix(tenant TenantID, job JobID, attempt, rank int) string {
	return path.Join(AttemptPrefix(tenant, job, attempt, rank), "checkpoints")
}

// CheckpointKey returns the folder of one member's shard of a checkpoint.
func CheckpointKey(tenant TenantID, job JobID, attempt, rank int, step int64) string {
	return path.Join(CheckpointsPrefix(tenant, job, attempt, rank), fmt.Sprintf("step-%d", step))
}

// ManifestName is the name of the object that is written last into a checkpoint's folder, and
// thereby completes the checkpoint.
const ManifestName = "MANIFEST.json"

// MetricsKey returns the key of the object with the measurements of one member.
func MetricsKey(tenant TenantID, job JobID, attempt, rank int) string {
	return path.Join(AttemptPrefix(tenant, job, attempt, rank), "metrics.json")
}

// OutputSuffix is the suffix of the keys of outputs. No folder has this suffix.
const OutputSuffix = ".tar.zst"

// OutputKey returns the key of the object with an output of one member of one attempt.
func OutputKey(tenant TenantID, job JobID, attempt, rank int, name string) string {
	return path.Join(AttemptPrefix(tenant, job, attempt, rank), "outputs", name+OutputSuffix)
}

// UploadFolder returns the folder of one stored copy of an upload. Each copy has a random
// part in its key, so that the removal of an old copy cannot remove a new one.
func UploadFolder(tenant TenantID, a Address, random string) string {
	return path.Join("tenants", string(tenant), "uploads", a.Hex(), random)
}

// ArchiveName is the name of the object in the folder of an upload.
const ArchiveName = "archive.tar.zst"

// LogRef names the log of one member in one attempt.
type LogRef struct {
	Tenant  TenantID
	Job     JobID
	Attempt int
	Rank    int
}
