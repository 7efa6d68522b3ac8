package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humaecho"

	"berth"
	"berth/db"
	"berth/internal/control/blob"
	"berth/internal/control/saveinterval"
	"berth/wire"
)

// checkpointHandlers serve the checkpoints of jobs: lists, downloads, pins and removals.
type checkpointHandlers struct {
	jobReader
	blobStore
	objects  *db.Objects
	chunks   *db.Chunks
	machines *db.Machines
	streams  *streams
}

func (h *checkpointHandlers) mount(r *router) {
	const tag, step = "data", "/v1/jobs/{id}/checkpoints/{step}"
	register(r, r.operation("list-checkpoints", http.MethodGet, "/v1/jobs/{id}/checkpoints", "jobs",
		"List a job's checkpoints, newest first"), h.listCheckpoints)
	advise := r.operation("advise-checkpoint-interval", http.MethodGet, "/v1/jobs/{id}/checkpoint-interval", "jobs",
		"Advise on the time between two checkpoints of a job")
	advise.Description = "The interval that would lose least work, from the measured times to save checkpoints and " +
		"from the losses of machines like the job's. `advised_seconds` is absent while too little is known."
	register(r, advise, h.adviseInterval)
	register(r, r.operation("show-checkpoint-files", http.MethodGet, step+"/members/{member}", tag,
		"List the files of one member in a verified checkpoint, with their hashes"), h.listFiles)
	get := r.operation("download-checkpoint-file", http.MethodGet, step+"/members/{member}/files/{file}", tag,
		"Download a file of a verified checkpoint")
	document(&get, "The file, with the length and sha256 of the list",
		map[string]*huma.MediaType{"application/octet-stream": {Schema: &huma.Schema{Type: huma.TypeString,
			Format: "binary"}}})
	register(r, get, h.downloadFile)
	register(r, r.operation("pin-checkpoint", http.MethodPost, step+"/pin", tag,
		"Keep a checkpoint from being pruned, and its job from being archived"), h.pin)
	register(r, r.operation("unpin-checkpoint", http.MethodPost, step+"/unpin", tag, "Unpin a checkpoint"), h.unpin)
	remove := r.operation("remove-checkpoint", http.MethodDelete, step, tag, "Remove a checkpoint of an ended job")
	remove.Description = "409 for a checkpoint that is pinned, or from which a live job started."
	remove.DefaultStatus = http.StatusNoContent
	register(r, remove, h.remove)
}

type checkpointsOutput struct {
	Body wire.Page[berth.Checkpoint]
}

// listCheckpoints returns a job's checkpoints as one page.
func (h *checkpointHandlers) listCheckpoints(ctx context.Context, in *JobInput) (*checkpointsOutput, error) {
	out, err := h.showJob(ctx, in)
	if err != nil {
		return nil, err
	}
	return &checkpointsOutput{page(out.Body.Checkpoints, "")}, nil
}

type intervalOutput struct{ Body wire.CheckpointInterval }

// adviseInterval computes the best interval from the job's checkpoints and the history of machines.
func (h *checkpointHandlers) adviseInterval(ctx context.Context, in *JobInput) (*intervalOutput, error) {
	out, err := h.showJob(ctx, in)
	if err != nil {
		return nil, err
	}
	seen, err := h.machines.Losses(ctx, out.Body.ID, saveinterval.Window)
	if err != nil {
		return nil, err
	}
	return &intervalOutput{saveinterval.Advise(out.Body.Checkpoints, seen)}, nil
}

// StepInput names a checkpoint of a job; of several attempts with this step, the latest
// counts.
type StepInput struct {
	JobInput
	Step int64 `path:"step" minimum:"0" doc:"number of the step"`
}

// MemberInput names one member's part of a checkpoint.
type MemberInput struct {
	StepInput
	Member int `path:"member" minimum:"0" doc:"number of the member, from 0"`
}

type filesOutput struct{ Body wire.CheckpointFiles }

// listFiles reads the manifest of one member's part. A manifest with another hash than the
// registered one is damaged, and the caller must not see its content.
func (h *checkpointHandlers) listFiles(ctx context.Context, in *MemberInput) (*filesOutput, error) {
	saved, err := h.saved(ctx, in)
	if err != nil {
		return nil, err
	}
	m, err := h.manifest(ctx, saved)
	if err != nil {
		return nil, err
	}
	out := &filesOutput{wire.CheckpointFiles{Step: saved.Step, Attempt: saved.Attempt, Member: saved.Member,
		Members: saved.Members, Files: make([]wire.SavedFile, len(m.Files))}}
	for i, f := range m.Files {
		out.Body.Files[i] = wire.SavedFile{Path: f.Path, Bytes: f.Bytes, SHA256: f.SHA256, Mode: f.Mode}
	}
	return out, nil
}

// manifest reads the manifest of one member's part, whose files must be of this part.
func (h *checkpointHandlers) manifest(
	ctx context.Context, saved db.SavedShard,
) (m wire.CheckpointManifest, err error) {
	store, err := h.blobs()
	if err != nil {
		return m, err
	}
	body, err := store.ReadAll(ctx, saved.Manifest, blob.MaxManifest)
	if berth.CodeOf(err) == berth.CodeNotFound {
		return m, damaged(saved, "its manifest is missing")
	}
	if err != nil {
		return m, err
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != saved.SHA256 {
		return m, damaged(saved, "the sha256 of its manifest is not the registered one")
	}
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(&m); err != nil {
		return m, damaged(saved, "its manifest cannot be read")
	}
	for i, f := range m.Files {
		if object := fileKey(saved, i); f.Object != object && (f.Object != "" || len(f.Chunks) == 0) {
			return m, damaged(saved, "its manifest names files of another checkpoint")
		}
	}
	return m, nil
}

// fileKey returns the key of a file that is one object, by its index in the manifest.
func fileKey(saved db.SavedShard, i int) string {
	return fmt.Sprintf("%s/file-%06d", saved.Folder(), i)
}

// damaged is the error for a checkpoint that the store does not hold as it was registered.
func damaged(s db.SavedShard, why string) error {
	return berth.Errorf(berth.CodeConflict, "step %d of job %s is damaged: %s", s.Step, s.Job, why)
}

// saved looks up one member's part of a verified checkpoint that the caller may see.
func (h *checkpointHandlers) saved(ctx context.Context, in *MemberInput) (db.SavedShard, error) {
	id, err := h.job(ctx, in.ID)
	if err != nil {
		return db.SavedShard{}, err
	}
	return h.objects.Saved(ctx, scope(ctx), id, in.Step, in.Member)
}

// fileInput names a file by its index in the list. Attempt keeps a download from mixing two
// checkpoints of one step.
type fileInput struct {
	MemberInput
	File    int `path:"file" minimum:"0" maximum:"999999" doc:"index in the list of files, from 0"`
	Attempt int `query:"attempt" minimum:"0" doc:"attempt that the list of files returned; default: the latest"`
}

// downloadFile sends a file as stored. Look-ups that can fail come before the answer begins.
func (h *checkpointHandlers) downloadFile(ctx context.Context, in *fileInput) (*huma.StreamResponse, error) {
	saved, err := h.saved(ctx, &in.MemberInput)
	if err != nil {
		return nil, err
	}
	if in.Attempt != 0 && in.Attempt != saved.Attempt {
		return nil, berth.Errorf(berth.CodeConflict, "step %d of job %s was saved again by attempt %d; list its files "+
			"again", saved.Step, saved.Job, saved.Attempt)
	}
	store, err := h.blobs()
	if err != nil {
		return nil, err
	}
	key := fileKey(saved, in.File)
	open := func(ctx context.Context) (io.ReadCloser, int64, error) { return store.Open(ctx, key) }
	file, err := h.chunked(ctx, store, saved, in.File)
	if err != nil {
		return nil, err
	}
	if file != nil {
		open = file.open
	}
	return &huma.StreamResponse{Body: func(out huma.Context) {
		c := humaecho.UnwrapV4(out)
		if err := h.streams.send(c, downloadTransfer, key, open); err != nil {
			h.streams.router.renderError(err, c)
		}
	}}, nil
}

// chunked returns the chunks of a file that consists of chunks, or nil for another one. Parts of checkpoints without
// chunks cost one look-up.
func (h *checkpointHandlers) chunked(
	ctx context.Context, store *blob.Store, saved db.SavedShard, file int,
) (*chunkedFile, error) {
	part := db.Member{Tenant: saved.Tenant, Job: saved.Job, Attempt: saved.Attempt, Rank: saved.Member}
	has, err := h.chunks.Has(ctx, part, saved.Step)
	if err != nil || !has {
		return nil, err
	}
	m, err := h.manifest(ctx, saved)
	if err != nil {
		return nil, err
	}
	if file >= len(m.Files) || len(m.Files[file].Chunks) == 0 {
		return nil, nil
	}
	f := &chunkedFile{size: m.Files[file].Bytes, store: store}
	for _, c := range m.Files[file].Chunks {
		f.sums = append(f.sums, c.SHA256)
	}
	f.keysOf = func(ctx context.Context, sums []string) (map[string]wire.ChunkCopy, error) {
		copies, err := h.chunks.Named(ctx, part, saved.Step, sums)
		if err != nil {
			return nil, err
		}
		for _, sum := range sums {
			if _, ok := copies[sum]; !ok {
				return nil, damaged(saved, "a part of a file is not stored")
			}
		}
		return copies, nil
	}
	f.copies, err = f.keysOf(ctx, f.sums)
	return f, err
}

// chunkedFile is a file that consists of chunks.
type chunkedFile struct {
	store  *blob.Store
	size   int64
	sums   []string // of its chunks, in order
	copies map[string]wire.ChunkCopy
	keysOf func(ctx context.Context, sums []string) (map[string]wire.ChunkCopy, error)
}

// open returns the content of the file. The first chunk is opened at once, so that a missing object is an error.
func (f *chunkedFile) open(ctx context.Context) (io.ReadCloser, int64, error) {
	first, err := f.chunk(ctx, f.sums[0])
	if err != nil {
		return nil, 0, err
	}
	return &chunkReader{ctx: ctx, file: f, present: first, rest: f.sums[1:]}, f.size, nil
}

// chunk opens a chunk. A copy that is gone may have been replaced since the download began.
func (f *chunkedFile) chunk(ctx context.Context, sum string) (io.ReadCloser, error) {
	in, _, err := f.store.Open(ctx, f.copies[sum].Key())
	if berth.CodeOf(err) != berth.CodeNotFound {
		return in, err
	}
	now, failed := f.keysOf(ctx, []string{sum})
	if failed != nil {
		return nil, failed
	}
	if now[sum] == f.copies[sum] {
		return nil, err
	}
	in, _, err = f.store.Open(ctx, now[sum].Key())
	return in, err
}

// chunkReader reads chunks one after the other. The reader of the file compares its hash.
type chunkReader struct {
	ctx     context.Context
	file    *chunkedFile
	present io.ReadCloser
	rest    []string // hashes of the next ones
}

// Read reads the present chunk, and opens the next one at its end.
func (r *chunkReader) Read(p []byte) (int, error) {
	for {
		n, err := r.present.Read(p)
		if n > 0 || !errors.Is(err, io.EOF) {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return n, err
		}
		if len(r.rest) == 0 {
			return 0, io.EOF
		}
		next, err := r.file.chunk(r.ctx, r.rest[0])
		if err != nil {
			return 0, err
		}
		_ = r.present.Close()
		r.present, r.rest = next, r.rest[1:]
	}
}

// Close closes the present chunk.
func (r *chunkReader) Close() error { return r.present.Close() }

type checkpointOutput struct{ Body berth.Checkpoint }

func (h *checkpointHandlers) pin(ctx context.Context, in *StepInput) (*checkpointOutput, error) {
	return h.change(ctx, in, h.objects.Pin)
}

func (h *checkpointHandlers) unpin(ctx context.Context, in *StepInput) (*checkpointOutput, error) {
	return h.change(ctx, in, h.objects.Unpin)
}

// change applies a change to a checkpoint and returns the checkpoint after the change.
func (h *checkpointHandlers) change(ctx context.Context, in *StepInput,
	do func(context.Context, berth.TenantID, berth.JobID, int64) error) (*checkpointOutput, error) {
	id, err := h.job(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if err := do(ctx, scope(ctx), id, in.Step); err != nil {
		return nil, err
	}
	out, err := h.jobNow(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, c := range out.Body.Checkpoints { // of one step, the latest attempt first
		if c.Step == in.Step && c.State == berth.CheckpointVerified {
			return &checkpointOutput{c}, nil
		}
	}
	return nil, berth.Errorf(berth.CodeNotFound, "job %s has no verified checkpoint of step %d", id, in.Step)
}

func (h *checkpointHandlers) remove(ctx context.Context, in *StepInput) (*struct{}, error) {
	id, err := h.job(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return nil, h.objects.Remove(ctx, scope(ctx), id, in.Step)
}
