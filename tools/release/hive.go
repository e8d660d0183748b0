package main

import (
	"encoding/binary"
	"unicode/utf16"
)

const (
	hiveBlockSize = 4096 // size of the base block, and of the only bin after it
	noCell        = 0xFFFFFFFF
)

// newEmptyHive returns a Windows registry hive that has only a root key. The format is described in
// https://github.com/msuhanov/regf/blob/master/Windows%20registry%20file%20format%20specification.md.
func newEmptyHive(name string) []byte {
	le := binary.LittleEndian
	hive := make([]byte, 2*hiveBlockSize)
	base, bin := hive[:hiveBlockSize], hive[hiveBlockSize:]

	key := newKeyNode(name)
	security := newHiveSecurity()
	keyAt := 32
	securityAt := keyAt + cellSize(len(key))
	le.PutUint32(key[44:], uint32(securityAt))
	le.PutUint32(security[4:], uint32(securityAt)) // a ring of one
	le.PutUint32(security[8:], uint32(securityAt))

	copy(bin, "hbin")
	le.PutUint32(bin[8:], hiveBlockSize)
	writeCell(bin, keyAt, key)
	writeCell(bin, securityAt, security)
	free := securityAt + cellSize(len(security))
	le.PutUint32(bin[free:], uint32(hiveBlockSize-free))

	copy(base, "regf")
	le.PutUint32(base[4:], 1) // equal sequence numbers ...
	le.PutUint32(base[8:], 1) // ... mean that no recovery is needed
	le.PutUint32(base[20:], 1)
	le.PutUint32(base[24:], 3) // version 1.3, as RegSaveKey writes
	le.PutUint32(base[32:], 1)
	le.PutUint32(base[36:], uint32(keyAt))
	le.PutUint32(base[40:], hiveBlockSize)
	le.PutUint32(base[44:], 1)
	for i, c := range utf16.Encode([]rune(name)) {
		le.PutUint16(base[48+2*i:], c)
	}
	le.PutUint32(base[508:], hiveChecksum(base))
	return hive
}

// hiveChecksum returns the checksum of a hive's base block: the XOR of its first 127 words. The format does not
// allow 0 and all ones, so these two become 1 and 0xFFFFFFFE.
func hiveChecksum(base []byte) uint32 {
	var sum uint32
	for i := 0; i < 508; i += 4 {
		sum ^= binary.LittleEndian.Uint32(base[i:])
	}
	switch sum {
	case 0:
		return 1
	case 0xFFFFFFFF:
		return 0xFFFFFFFE
	}
	return sum
}

// cellSize returns the size in bytes of a cell that holds data bytes. It includes the length field, and is rounded
// up to 8 bytes.
func cellSize(data int) int { return (4 + data + 7) &^ 7 }

func writeCell(bin []byte, at int, data []byte) {
	binary.LittleEndian.PutUint32(bin[at:], uint32(-int32(cellSize(len(data))))) // negative means in use
	copy(bin[at+4:], data)
}

// newKeyNode returns the cell of a root key that has no values and no subkeys. The caller sets the position of the
// key's security cell.
func newKeyNode(name string) []byte {
	le := binary.LittleEndian
	const root, noDelete, asciiName = 0x4, 0x8, 0x20
	b := make([]byte, 76, 76+len(name))
	copy(b, "nk")
	le.PutUint16(b[2:], root|noDelete|asciiName)
	for _, none := range []int{16, 28, 32, 40, 48} { // parent, lists of subkeys, volatile subkeys and values; class name
		le.PutUint32(b[none:], noCell)
	}
	le.PutUint16(b[72:], uint16(len(name)))
	return append(b, name...)
}

// newHiveSecurity returns a security cell that gives all rights to the system and to administrators. Subkeys inherit
// these rights. The caller sets the position of the cell.
func newHiveSecurity() []byte {
	le := binary.LittleEndian
	system := []byte{1, 1, 0, 0, 0, 0, 0, 5, 18, 0, 0, 0}                           // S-1-5-18
	administrators := []byte{1, 2, 0, 0, 0, 0, 0, 5, 32, 0, 0, 0, 0x20, 0x02, 0, 0} // S-1-5-32-544
	const allAccess, inherited = 0xF003F, 2

	acl := []byte{2, 0, 0, 0, 2, 0, 0, 0}
	for _, sid := range [][]byte{system, administrators} {
		ace := make([]byte, 8)
		ace[1] = inherited
		le.PutUint16(ace[2:], uint16(8+len(sid)))
		le.PutUint32(ace[4:], allAccess)
		acl = append(append(acl, ace...), sid...)
	}
	le.PutUint16(acl[2:], uint16(len(acl)))

	const selfRelative, hasACL = 0x8000, 0x4
	descriptor := make([]byte, 20)
	descriptor[0] = 1
	le.PutUint16(descriptor[2:], selfRelative|hasACL)
	le.PutUint32(descriptor[4:], 20)                                          // owner: administrators
	le.PutUint32(descriptor[8:], uint32(20+len(administrators)))              // group: system
	le.PutUint32(descriptor[16:], uint32(20+len(administrators)+len(system))) // access control list
	for _, part := range [][]byte{administrators, system, acl} {
		descriptor = append(descriptor, part...)
	}

	b := make([]byte, 20, 20+len(descriptor))
	copy(b, "sk")
	le.PutUint32(b[12:], 1)
	le.PutUint32(b[16:], uint32(len(descriptor)))
	return append(b, descriptor...)
}
