#include "headrace/core/packed_matrix.h"
#include <cstring>
namespace headrace {
int64_t packed_bytes(BlockFormat f, int64_t out, int64_t in){ auto& l=layout_of(f); return (out+7)/8*8*(in/l.elements*l.bytes);}
void pack_rows(const PackedMatrix& s,int64_t first,std::span<const unsigned char> rows,unsigned char* p){auto& l=layout_of(s.format); std::memcpy(p+first*(s.in/l.elements*l.bytes),rows.data(),rows.size());}
void unpack_row(const PackedMatrix& m,int64_t row,std::span<float> v){auto& l=layout_of(m.format); size_t b=size_t(m.in/l.elements*l.bytes); dequantize(m.format,{m.data+size_t(row)*b,b},v);}
}
