package agent

import (
	"context"
	"errors"
	"fmt"

	"berth"
	"berth/wire"
)

// This file restores the parts of all members of a checkpoint, which another number of members has saved
// (docs/adr/0118-each-member-may-get-all-parts.md).

// savedPart is one member's part of a checkpoint that is restored.
type savedPart struct {
	wire.RestorePoint        // with the manifest of this part
	rank              int    // of the member that saved it
	folder            string // below the folder of the step; "": the folder of the step itself
}

// parts returns the parts of a checkpoint that the member gets, without their files.
func (p *restorePhase) parts(point wire.RestorePoint) []savedPart {
	if len(point.Parts) == 0 {
		return []savedPart{{RestorePoint: point, rank: p.number}}
	}
	parts := make([]savedPart, len(point.Parts))
	for rank, part := range point.Parts {
		parts[rank] = savedPart{RestorePoint: point, rank: rank, folder: fmt.Sprintf("member-%d", rank)}
		parts[rank].Manifest, parts[rank].SHA256 = part.Manifest, part.SHA256
	}
	return parts
}

// check checks the manifests of several parts and the free space, before the first file is fetched. It keeps the sums
// of the manifests alone: each manifest is fetched again with the files of its part. A single part needs no check
// before its fetch.
func (p *restorePhase) check(ctx context.Context, point wire.RestorePoint, parts []savedPart) error {
	if len(point.Parts) == 0 {
		return nil
	}
	need := int64(0)
	for _, part := range parts {
		err := p.withFiles(ctx, part, func(files []wire.CheckpointFile) error {
			for _, f := range files {
				need += f.Bytes
			}
			return nil
		})
		if err != nil {
			return part.named(err)
		}
	}
	// An earlier process of the agent may have put the step in place. A second copy may have no room.
	if err := p.scratch.checkpoint.RemoveAll(stepName(point.Step)); err != nil {
		return err
	}
	return p.hasRoom(len(parts), need)
}

// hasRoom returns an error if need bytes, the files of all parts, would use the disk reserve of the machine.
func (p *restorePhase) hasRoom(parts int, need int64) error {
	if p.disk == nil {
		return nil
	}
	free, reserve, err := p.disk.room()
	if err != nil {
		return err
	}
	if need <= free-reserve {
		return nil
	}
	return fmt.Errorf("the parts of %d members have %s, and the machine has %s free, of which %s are its reserve",
		parts, berth.BytesText(need), berth.BytesText(free), berth.BytesText(reserve))
}

// passing makes a refusal of another member's part worth another try: a server of the version before refuses it, which
// proves nothing about the content. Only the answer that the store lacks the object does.
func (s savedPart) passing(err error) error {
	if s.folder == "" {
		return err
	}
	return passing(err)
}

// named adds the member that saved the part to an error, if the restore has parts of several members.
func (s savedPart) named(err error) error {
	if s.folder == "" {
		return err
	}
	if bad, ok := errors.AsType[damage](err); ok {
		return damage{fmt.Sprintf("part of member %d: %s", s.rank, bad.says)}
	}
	return fmt.Errorf("part of member %d: %w", s.rank, err)
}
