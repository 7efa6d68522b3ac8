package agent

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"

	"golang.org/x/sync/errgroup"

	"berth"
	"berth/internal/lib/chunker"
	"berth/wire"
)

// This file stores large files of checkpoints by chunks, which consecutive checkpoints share
// (docs/adr/0098-unchanged-content-is-stored-once.md).

const (
	leastChunked  = 1 << 20  // bytes of a file that is stored by chunks
	mostChunked   = 48 << 30 // bytes of a step with files of chunks; larger steps would have too many
	chunksAbreast = 4        // chunks that are sent or read at the same time
	chunksInCall  = 32       // addresses that one call asks for; all are used within minutes
	chunkRounds   = 3        // tries to register a step whose chunks the server did not have
)

// errNoChunks ends the storage of a step by chunks, because the server does not know them.
var errNoChunks = errors.New("the server stores no chunks")

// cutFile is a file of a step, cut into chunks.
type cutFile struct {
	name string // below the folder of checkpoints
	file wire.CheckpointFile
}

// piece is a chunk in a file.
type piece struct {
	wire.Chunk
	name string // of the file
	at   int64
}

// chunkStore stores the chunks of one step.
type chunkStore struct {
	*checkpointUploader
	step   int64
	server map[string]bool // chunks that go through the server after a fault of the direct way
}

// sharesChunks reports whether the files of a step of this size are stored by chunks.
func (u *checkpointUploader) sharesChunks(bytes int64) bool {
	if bytes < leastChunked || bytes > mostChunked {
		return false
	}
	policy, ok := u.control.direct.asks(u.ctx)
	return ok && policy.Chunks
}

// large returns the files of a step that are worth chunks, and their bytes.
func (u *checkpointUploader) large(step int64, names []string) (list map[string]bool, bytes int64) {
	list = map[string]bool{}
	for _, name := range names {
		info, err := u.scratch.checkpoint.Lstat(path.Join(stepName(step), name))
		if err == nil && info.Size() >= leastChunked {
			list[name] = true
			bytes += info.Size()
		}
	}
	return list, bytes
}

// cut cuts a file into chunks and hashes it.
func (u *checkpointUploader) cut(name string, f *wire.CheckpointFile) error {
	file, err := openRegular(u.scratch.checkpoint, name)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	whole, size := sha256.New(), int64(0)
	f.Object, f.Chunks, f.Mode = "", nil, uint32(info.Mode().Perm())
	err = chunker.Split(io.TeeReader(file, whole), func(chunk []byte) error {
		if u.ctx.Err() != nil {
			return context.Cause(u.ctx)
		}
		sum := sha256.Sum256(chunk)
		f.Chunks = append(f.Chunks, wire.Chunk{SHA256: hex.EncodeToString(sum[:]), Bytes: int64(len(chunk))})
		size += int64(len(chunk))
		return nil
	})
	if err != nil {
		return err
	}
	if size != info.Size() {
		return fmt.Errorf("%s changed while it was stored", name)
	}
	f.SHA256, f.Bytes = hex.EncodeToString(whole.Sum(nil)), size
	return nil
}

// pieces returns the distinct chunks of files, in order.
func pieces(files []cutFile) (list []piece) {
	seen := map[string]bool{}
	for _, f := range files {
		at := int64(0)
		for _, c := range f.file.Chunks {
			if !seen[c.SHA256] {
				seen[c.SHA256] = true
				list = append(list, piece{Chunk: c, name: f.name, at: at})
			}
			at += c.Bytes
		}
	}
	return list
}

// store sends the chunks that the server does not let the member leave out.
func (s *chunkStore) store(files []cutFile) error {
	var missing []piece
	rest := int64(0)
	for list := pieces(files); len(list) > 0; {
		some := list[:min(wire.MaxAskedChunks, len(list))]
		list = list[len(some):]
		var a wire.ChunkAnswer
		err := s.retry.insist("ask which chunks of a checkpoint to store", func(ctx context.Context) (err error) {
			a, err = s.ask(ctx, wire.ChunkAsk, some, 0)
			return err
		})
		if err != nil {
			return err
		}
		for i, p := range some {
			if !a.Chunks[i].Have {
				missing = append(missing, p)
				rest += p.Bytes
			}
		}
	}
	for len(missing) > 0 {
		some := missing[:min(chunksInCall, len(missing))]
		missing = missing[len(some):]
		err := s.retry.insist("store chunks of a checkpoint", func(ctx context.Context) error {
			return s.send(ctx, some, rest)
		})
		if err != nil {
			return err
		}
		for _, p := range some {
			rest -= p.Bytes
		}
	}
	return nil
}

// ask sends a question about chunks of the step.
func (s *chunkStore) ask(ctx context.Context, want wire.ChunkWant, list []piece, rest int64) (wire.ChunkAnswer, error) {
	r := wire.ChunkRequest{Job: s.job, Attempt: s.attempt, Rank: s.number, Step: s.step, Want: want, Rest: rest}
	for _, p := range list {
		r.Chunks = append(r.Chunks, p.Chunk)
	}
	a, err := s.control.askChunks(ctx, r)
	// All refusals of the question itself have another code: this server is of a version before chunks.
	if berth.CodeOf(err) == berth.CodeNotFound && answered(err) {
		return a, localError{errNoChunks}
	}
	return a, err
}

// askChunks sends a question about chunks under the terms of the present session.
func (c *control) askChunks(ctx context.Context, r wire.ChunkRequest) (a wire.ChunkAnswer, err error) {
	err = c.withTerms(ctx, func(epoch int64) error {
		a = wire.ChunkAnswer{}
		r.AgentBoot, r.Epoch = c.boot, epoch
		return c.call(ctx, 2*callTimeout, "chunks", r, &a)
	})
	if err == nil && len(a.Chunks) != len(r.Chunks) {
		err = berth.Errorf(berth.CodeInternal, "the server answers about %d chunks of %d", len(a.Chunks), len(r.Chunks))
	}
	return a, err
}

// send stores some chunks, and lets the server compare the ones that went straight to the object store.
func (s *chunkStore) send(ctx context.Context, list []piece, rest int64) error {
	a, err := s.ask(ctx, wire.ChunkStore, list, rest)
	if err != nil {
		return err
	}
	all, abreast := errgroup.WithContext(ctx)
	all.SetLimit(chunksAbreast)
	direct := make([]bool, len(list))
	for i, p := range list {
		access := a.Chunks[i]
		if access.Have {
			continue
		}
		if direct[i] = access.Address.URL != "" && !s.server[p.SHA256]; direct[i] {
			direct[i] = !s.control.direct.path.pauses(p.Bytes)
		}
		all.Go(func() (err error) {
			direct[i], err = s.sendOne(abreast, p, access, direct[i])
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	var compared []piece
	for i, p := range list {
		if direct[i] {
			compared = append(compared, p)
		}
	}
	if len(compared) == 0 {
		return nil
	}
	if a, err = s.ask(ctx, wire.ChunkStored, compared, 0); err != nil {
		return err
	}
	for i, p := range compared {
		if !a.Chunks[i].Have {
			s.server[p.SHA256] = true
			err = berth.Errorf(berth.CodeUnavailable, "the object store does not have chunk %s as sent", p.SHA256)
		}
	}
	return err
}

// sendOne stores one chunk, straight or through the server. It reports whether the server must compare the object.
func (s *chunkStore) sendOne(
	ctx context.Context, p piece, a wire.ChunkAccess, straight bool,
) (compare bool, err error) {
	file, err := openRegular(s.scratch.checkpoint, p.name)
	if err != nil {
		return false, localError{err}
	}
	defer file.Close()
	d := s.control.direct
	if straight {
		body := &hashed{f: file, size: p.at + p.Bytes}
		err := d.send(ctx, a.Address, body, p.at, p.Bytes)
		switch {
		case err == nil:
			d.path.worked(p.Bytes)
			s.control.metrics.stored(wayDirect, p.Bytes)
			return true, nil
		case errors.Is(err, errExists): // an earlier try stored it, and its answer was lost
			return true, nil
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case body.fault() != nil:
			return false, localError{body.fault()}
		}
		_ = d.judge(a.Key, p.Bytes, err) // the chunk goes through the server in any case
	}
	content, err := io.ReadAll(io.NewSectionReader(file, p.at, p.Bytes))
	if err != nil {
		return false, localError{err}
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != p.SHA256 {
		return false, localError{fmt.Errorf("%s changed while it was stored", p.name)}
	}
	return false, s.control.putObject(ctx, a.Key, bytes.NewReader(content), p.Bytes)
}

// fetchChunks puts a file that consists of chunks in place, and verifies the hash of each chunk and of the whole file.
func (p *restorePhase) fetchChunks(ctx context.Context, part savedPart, f wire.CheckpointFile) error {
	root := p.scratch.checkpoint
	name := path.Join(partial, part.folder, f.Path)
	if err := root.MkdirAll(path.Dir(name), 0o777); err != nil {
		return err
	}
	out, err := root.Create(name)
	if err != nil {
		return fmt.Errorf("write %s: %w", f.Path, err)
	}
	defer out.Close()
	whole := sha256.New()
	for list := f.Chunks; len(list) > 0; {
		some := list[:min(2*chunksAbreast, len(list))]
		list = list[len(some):]
		contents, err := p.readChunks(ctx, part, some)
		if err != nil {
			return p.chunkFault(ctx, f, err)
		}
		for _, content := range contents {
			_, _ = whole.Write(content)
			if _, err := out.Write(content); err != nil {
				return fmt.Errorf("write %s: %w", f.Path, err)
			}
		}
	}
	if hex.EncodeToString(whole.Sum(nil)) != f.SHA256 {
		return damage{f.Path + ": the sha256 is not the manifest's"}
	}
	// The container may run as any user, who must be able to use the files.
	if err := out.Chmod(os.FileMode(f.Mode).Perm() | 0o666); err != nil {
		return fmt.Errorf("write %s: %w", f.Path, err)
	}
	p.claim.own(root, name)
	return nil
}

// chunkFault returns the error of a file whose chunk did not arrive. Only the server's word that a chunk is missing or
// damaged is a proof of damage.
func (p *restorePhase) chunkFault(ctx context.Context, f wire.CheckpointFile, err error) error {
	switch {
	case ctx.Err() != nil:
		return err
	case objectMissing(err):
		return damage{fmt.Sprintf("%s: a chunk is missing or damaged", f.Path)}
	case refused(err) && berth.CodeOf(err) != berth.CodeNotFound:
		return err
	}
	return cannotFetch{fmt.Errorf("fetch %s: %w", f.Path, err)}
}

// readChunks reads some chunks of a checkpoint. A repeated chunk is read once.
func (p *restorePhase) readChunks(ctx context.Context, part savedPart, list []wire.Chunk) ([][]byte, error) {
	r := wire.ChunkRequest{Job: cmp.Or(part.Job, p.job), Attempt: part.Attempt, Rank: part.rank, Step: part.Step,
		Want: wire.ChunkRead}
	place := map[string]int{}
	for _, c := range list {
		if _, twice := place[c.SHA256]; !twice {
			place[c.SHA256] = len(r.Chunks)
			r.Chunks = append(r.Chunks, c)
		}
	}
	var a wire.ChunkAnswer
	err := p.retry.patiently(ctx, func() (err error) {
		a, err = p.control.askChunks(ctx, r)
		return passing(err)
	})
	if err != nil {
		return nil, err
	}
	read := make([][]byte, len(r.Chunks))
	all, abreast := errgroup.WithContext(ctx)
	all.SetLimit(chunksAbreast)
	for i, c := range r.Chunks {
		all.Go(func() error {
			return p.retry.patiently(abreast, func() (err error) {
				read[i], err = p.control.readChunk(abreast, r, c, a.Chunks[i].Address)
				a.Chunks[i].Address.URL = "" // a further try goes through the server
				return passing(err)
			})
		})
	}
	if err := all.Wait(); err != nil {
		return nil, err
	}
	contents := make([][]byte, len(list))
	for i, c := range list {
		contents[i] = read[place[c.SHA256]]
	}
	return contents, nil
}

// passing turns the answer of a server that does not know chunks, or no longer lets this machine read them, into an
// error that is worth another try: neither proves that a chunk is missing.
func passing(err error) error {
	if berth.CodeOf(err) == berth.CodeNotFound && answered(err) && !objectMissing(err) {
		return berth.Errorf(berth.CodeUnavailable, "chunks of a checkpoint: %v", err)
	}
	return err
}

// readChunk returns a verified chunk, straight from the object store if there is an address that works.
func (c *control) readChunk(
	ctx context.Context, r wire.ChunkRequest, chunk wire.Chunk, at wire.ObjectAddress,
) ([]byte, error) {
	if at.URL != "" && c.direct != nil && !c.direct.path.pauses(chunk.Bytes) {
		content, err := c.direct.readChunk(ctx, at, chunk)
		if err == nil {
			return content, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	route := wire.ChunkPath(r.Job, r.Attempt, r.Rank, r.Step, chunk.SHA256)
	answer, err := c.send(ctx, http.MethodGet, route, nil, nil, 0)
	if err != nil {
		return nil, err
	}
	in := c.metrics.reading(wayServer, answer.Body)
	defer in.Close()
	return verifiedChunk(in, chunk)
}

// readChunk returns a verified chunk from the object store.
func (d *directStore) readChunk(ctx context.Context, at wire.ObjectAddress, chunk wire.Chunk) ([]byte, error) {
	limited, cancel := context.WithTimeout(ctx, d.stall)
	defer cancel()
	answer, err := d.do(limited, http.MethodGet, at, nil, 0)
	if err == nil {
		in := d.control.metrics.reading(wayDirect, answer.Body)
		defer in.Close()
		var content []byte
		if content, err = verifiedChunk(in, chunk); err == nil {
			d.path.worked(chunk.Bytes)
			return content, nil
		}
	}
	if _, content := errors.AsType[errContent](err); !content && ctx.Err() == nil {
		d.path.failed(chunk.Bytes, err)
	}
	return nil, err
}

// verifiedChunk reads a chunk and compares it with its hash. A chunk with another content was damaged on its way, since
// the server compares it, too: reading it again may help.
func verifiedChunk(in io.Reader, chunk wire.Chunk) ([]byte, error) {
	content := make([]byte, chunk.Bytes)
	if _, err := io.ReadFull(in, content); err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != chunk.SHA256 {
		return nil, errContent{berth.Errorf(berth.CodeUnavailable, "chunk %s has another content", chunk.SHA256)}
	}
	return content, nil
}
