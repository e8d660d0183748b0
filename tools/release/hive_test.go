package main

import (
	"bytes"
	"encoding/binary"
	"testing"

	"www.velocidex.com/golang/regparser"
)

func TestEmptyHiveIsReadableByAnotherLibrary(t *testing.T) {
	for _, name := range []string{"DEFAULT", "SAM", "SECURITY", "SOFTWARE", "SYSTEM"} {
		hive := newEmptyHive(name)
		registry, err := regparser.NewRegistry(bytes.NewReader(hive))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		base := registry.BaseBlock
		if base.Major() != 1 || base.Minor() != 3 || base.Length() != 4096 || base.CheckSum() != hiveChecksum(hive[:hiveBlockSize]) {
			t.Errorf("%s: version %d.%d, length %d, checksum %x", name, base.Major(), base.Minor(), base.Length(), base.CheckSum())
		}
		root := registry.OpenKey("")
		if root == nil {
			t.Fatalf("%s: no root key", name)
		}
		if root.Name() != name || len(root.Subkeys()) != 0 || len(root.Values()) != 0 {
			t.Errorf("%s: root key %q with %d keys and %d values", name, root.Name(), len(root.Subkeys()), len(root.Values()))
		}
	}
}

// Windows refuses a hive with cells that do not fill their bin exactly.
func TestHiveCellsFillTheirBin(t *testing.T) {
	bin := newEmptyHive("SOFTWARE")[hiveBlockSize:]
	at, kinds := 32, ""
	for at < len(bin) {
		size := int(int32(binary.LittleEndian.Uint32(bin[at:])))
		kind := "free "
		if size < 0 {
			size, kind = -size, string(bin[at+4:at+6])+" "
		}
		if size == 0 || size%8 != 0 {
			t.Fatalf("cell at %d has size %d", at, size)
		}
		kinds += kind
		at += size
	}
	if at != len(bin) || kinds != "nk sk free " {
		t.Errorf("cells %q end at %d of %d", kinds, at, len(bin))
	}
	root := bin[32+4:]
	security := int(binary.LittleEndian.Uint32(root[44:]))
	if string(bin[security+4:security+6]) != "sk" {
		t.Errorf("the root key has its security at %d, but it is not there", security)
	}
}
