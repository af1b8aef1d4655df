"""The drawings of the dataset, as the commands of `pen`.

Things look right and stand on the lower edge of their size in `scene.KINDS`. "main", "dark" and
"light" are shades of the thing's own colour. The drawing of an action ("dog sit", or "dog *" for
those not named) goes before the drawing of the kind ("dog").
"""

SHAPES = {
    # Animals and things.
    "dog sit": """line main 7 26 74 12 66 6 54; shape main 28 80 36 46 56 26 74 36 74 78
        oval main 22 48 58 82; line dark 8 60 50 60 77; line main 8 70 46 70 77
        line red 4 56 35 68 36; at 50 4""",
    "dog sleep": """line main 7 18 72 6 76; oval main 10 46 78 81; oval dark 16 62 44 82
        stamp snore 84 32; at 64 46""",
    "dog *": """line main 7 22 38 10 26 8 12; legs main 9 50 81 24 32 62 70
        slab main 15 16 29 78 60; oval light 40 46 68 59; line main 14 70 42 76 28
        line red 4 68 37 82 38; at 64 6""",
    "dog": """oval main 0 0 30 29; oval light 18 11 40 27; oval black 33 10 41 18
        oval dark -3 3 10 30; eye white 14 6 8; line red 3 28 25 28 28""",
    "cat sit": """line main 6 36 78 16 76 8 60 16 46; oval main 30 30 74 84
        oval light 46 42 66 70; line dark 7 50 60 50 79; line dark 7 62 60 62 79; at 42 4""",
    "cat sleep": """oval main 6 46 78 84; line dark 7 12 76 40 79 56 78; stamp snore 80 30
        at 54 46""",
    "cat *": """line main 6 18 44 6 30 10 14 4 6; legs main 7 52 83 20 28 62 70
        slab main 14 12 36 76 62; line dark 3 24 38 26 48; line dark 3 36 38 38 48
        line dark 3 48 38 50 48; at 60 6""",
    "cat": """shape main 1 14 4 -5 15 12; shape pink 5 10 5 0 11 9; shape main 21 12 30 -5 35 14
        shape pink 25 9 29 0 31 9; oval main 0 3 36 34; oval light 9 19 27 32
        eye green 7 11 9; eye green 22 11 9; shape pink 15 21 21 21 18 25
        line white 1 22 25 40 23; line white 1 22 25 40 28
        line white 1 14 25 -4 23; line white 1 14 25 -4 28""",
    "horse": """line dark 9 22 44 10 56 8 82; legs main 9 64 113 28 36 76 84
        slab main 18 18 38 92 72; shape main 70 48 88 10 104 12 92 64
        shape main 88 8 102 4 126 28 120 36 108 32 94 24; shape main 90 10 92 -1 100 8
        line dark 8 91 8 82 22 74 42; oval black 101 12 107 18; oval dark 117 26 122 31
        line wood 3 108 12 102 30; shape wood 46 36 66 36 68 52 50 52""",
    "bird fly": """shape dark 44 42 30 2 64 36; shape main 2 40 4 60 34 52; oval main 22 32 76 62
        shape light 36 46 14 6 38 14 62 44; shape dark 36 46 14 6 22 10 46 44; at 60 24""",
    "bird stand": """line orange 3 40 56 40 70 46 70; line orange 3 50 56 50 70 56 70
        shape dark 2 58 8 66 36 46; oval main 18 22 70 62; oval light 40 36 68 60
        slice dark 20 190 20 22 54 56; at 48 6""",
    "bird": "oval main 0 0 26 24; shape orange 24 8 36 14 23 17; eye white 13 5 9",
    "duck stand": "line orange 4 38 54 38 67 46 67; line orange 4 50 54 50 67 58 67",
    "duck swim": "at 0 5",
    "duck": """shape main 2 28 30 36 20 56; oval main 8 28 74 66; line main 14 62 42 62 18
        oval main 50 0 78 28; slab orange 4 73 11 88 21; oval light 20 36 56 56
        slice dark 0 180 22 32 58 56; eye white 63 6 8""",
    "fish": """shape dark 24 30 2 8 8 30 2 52; shape dark 40 14 60 0 64 16; oval main 14 10 86 50
        slice light 10 170 18 8 84 50; line dark 2.5 34 20 30 30 34 40
        line dark 2.5 46 20 42 30 46 40; line dark 2.5 58 20 54 30 58 40; eye white 66 18 12""",
    "car": """shape main 20 28 40 4 86 4 106 28; slab main 9 1 24 127 50
        shape glass 30 25 43 9 60 9 60 25; shape glass 65 9 84 9 97 25 65 25
        line dark 2 62 28 62 46; line light 3 8 31 118 31; oval yellow 117 28 127 38
        slab red 2 1 29 6 38; stamp wheel 30 49; stamp wheel 98 49""",
    "bus": """slab main 9 1 2 149 76; slab light 2 1 48 149 54; slab glass 3 10 14 30 40
        slab glass 3 36 14 56 40; slab glass 3 62 14 82 40; slab glass 3 88 14 108 40
        slab glass 3 116 14 145 72; line dark 2 130 14 130 72; oval white 141 58 149 66
        stamp wheel 34 75; stamp wheel 100 75""",
    "bicycle": """ring black 4.5 1 29 47 75; ring light 1.5 5 33 43 71; line grey 1 7 52 41 52
        line grey 1 24 35 24 69; ring black 4.5 69 29 115 75; ring light 1.5 73 33 111 71
        line grey 1 75 52 109 52; line grey 1 92 35 92 69
        line main 7 24 52 44 24 80 24 56 54 24 52; line main 7 44 24 56 54
        line main 7 92 52 78 14; line black 5 70 10 80 9 88 14; line black 7 34 16 52 16
        oval grey 49 47 63 61""",
    "boat sail": """line wood 4 60 4 60 84; shape white 64 6 64 74 108 74
        shape main 56 14 56 74 20 74; shape light 64 40 86 40 94 52 64 52""",
    "boat drift": """slab white 3 40 56 84 86; slab glass 2 46 62 58 74; slab glass 2 66 62 78 74
        slab dark 2 36 52 88 58""",
    "boat": """shape main 0 80 120 80 100 111 20 111; line light 4 6 85 114 85
        line dark 5 22 107 98 107""",
    "house": """box wood 94 6 110 44; box main 12 50 120 123; line dark 1 14 62 118 62
        line dark 1 14 74 118 74; line dark 1 14 86 118 86; line dark 1 14 98 118 98
        line dark 1 14 110 118 110; shape roof 0 54 66 2 132 54; box white 22 66 48 94
        box glass 25 69 45 91; line white 2 35 69 35 91; box white 84 66 110 94
        box glass 87 69 107 91; line white 2 97 69 97 91; slab wood 4 55 78 77 123
        oval yellow 70 100 74 104""",
    "tree": """shape wood 42 141 46 70 58 70 64 141; line wood 6 52 100 72 76
        oval dark 1 41 51 91; oval dark 53 41 103 91; oval dark 28 50 76 98; oval main 3 21 57 75
        oval main 47 21 101 75; oval main 23 1 81 59; oval main 26 32 78 84; oval light 29 15 51 37
        oval light 57 31 75 49; oval light 20 40 36 56; oval light 43 49 57 63""",
    "ball": """oval main 1 1 69 69; slice white 60 120 1 1 69 69; slice white 180 240 1 1 69 69
        slice white 300 360 1 1 69 69; oval dark 26 26 44 44""",
    "chair": """line wood 5 20 60 20 92; line wood 5 60 60 60 92; slab main 6 6 2 58 58
        slab dark 3 16 10 23 48; slab dark 3 28 10 35 48; slab dark 3 40 10 47 48
        shape light 6 56 58 56 69 68 10 68; slab main 2 10 66 69 74; line wood 6 13 74 13 97
        line wood 6 66 74 66 97""",
    "umbrella": """line wood 4 58 10 58 114; slice main 180 360 2 6 114 110
        slice white 180 360 22 6 94 110; slice main 180 360 42 6 74 110; oval dark 54 2 62 10""",
    "kite": """line white 2 42 76 34 90 46 102 38 117; shape main 36 90 27 84 27 96
        shape main 36 90 45 84 45 96; shape main 44 104 35 98 35 110; shape main 44 104 53 98 53 110
        shape main 42 1 82 32 42 80 2 32; shape light 42 1 82 32 42 32
        shape dark 42 80 2 32 42 32; line wood 2 42 1 42 80; line wood 2 2 32 82 32""",
    "balloon": """line white 1.5 32 74 28 88 36 100 31 111; shape dark 32 68 25 78 39 78
        oval main 2 1 62 72; oval light 14 10 28 32; oval white 17 13 24 22""",
    "plane": """shape dark 56 34 40 4 54 4 84 34; shape main 4 6 18 6 36 32 12 36
        slab main 13 6 26 130 52; slice glass 270 360 100 27 129 52; oval glass 34 31 41 39
        oval glass 46 31 53 39; oval glass 58 31 65 39; oval glass 70 31 77 39
        oval glass 82 31 89 39; line dark 2 14 46 122 46; shape light 56 44 34 69 50 69 88 44""",
    # Parts of the others.
    "wheel": "spot black 0 0 12 12; spot grey 0 0 6 6",
    "snore": "line white 2.2 0 0 7 0 0 7 7 7; line white 2.2 10 -10 20 -10 10 0 20 0",
    "sun": "spot #fff4aa 0 0 17 17; spot yellow 0 0 13 13",
    "low-sun": "spot #ffc464 0 0 24 24; spot #ffe88c 0 0 19 19",
    "moon": "spot #f4f0ce 0 0 14 14; spot #181b42 6 -3 12 12",
    "cloud": """spot white -14 3 11 7; spot white -4 -2 14 9; spot white 9 0 13 8
        spot white 18 4 9 6""",
    "red-cloud": "spot #fab096 -9 0 16 6; spot #fab096 8 -2 18 6; spot #fab096 22 3 12 4",
    "flower": """spot white -1.6 0 1.4 1.4; spot white 1.6 0 1.4 1.4; spot white 0 -1.6 1.4 1.4
        spot white 0 1.6 1.4 1.4; spot yellow 0 0 1.2 1.2""",
    "cactus": "line #467846 6 0 0 0 -30; line #467846 4 -9 -19 -9 -8 9 -12 9 -24",
    "mountain": "peak #8092ac 0 0 66 56; peak #f4f8ff 0 -34 26 22",
    "lamp": "line #2a2a34 2.4 0 0 0 -78; spot glow 0 -80 5 5",
    "window": """box #fafaf6 0 6 66 80; box #96c8f0 5 11 61 75; box #fafaf6 31 6 35 80
        box #fafaf6 0 41 66 45; slab #b24a4a 3 -14 0 6 96; slab #b24a4a 3 60 0 80 96""",
    "lane": """box #f0ecdc 0 0 26 5; box #f0ecdc 48 0 74 5; box #f0ecdc 96 0 122 5
        box #f0ecdc 144 0 170 5; box #f0ecdc 192 0 218 5; box #f0ecdc 240 0 266 5""",
    "painting": "box wood 0 0 38 30; box #cedcc8 4 4 34 26; peak #648c6e 16 26 12 16",
    # Places.
    "beach": """box #1c70b0 0 96 224 156; box #268cbe 0 110 224 156
        box #46b0ce 0 126 224 156
        26* stroke #bee2f0 0.8 0~224 99~148 6~20 0; 24* spot white 0~224 156 14 3~5
        18* spot #ccb078 0~224 166~224 1~4 0.9; 1~5* spot #faece2 0~224 168~224 3 2.2""",
    "park": """22* spot #367438 -10~234 104 12~20 8~18; box #5ca446 0 106 224 116
        80* stroke #226822 0.9 0~224 120~224 -2~2 -7~-3
        50* stroke #80c454 0.9 0~224 120~224 -2~2 -7~-3; 6~22* stamp flower 0~224 124~224""",
    "street": """skyline #d0aa88 120 46 96 0; box #a8a6a2 0 120 224 142
        box #82807e 0 142 224 146; stamp lane -30~0 188""",
    "room": """14* stroke #d6ba96 5 0~224 0 0 140; box #f6f0e6 0 142 224 150
        line #683e22 1 0 160 224 160; line #683e22 1 0 176 224 176; line #683e22 1 0 198 224 198
        4* stroke #683e22 1 0~224 160 0 16; 4* stroke #683e22 1 0~224 176 0 22
        stamp window 16~60 16; stamp painting 152~180 30~44
        spot #ba8c96 112 200 96 22; spot #ceaab0 112 200 84 17""",
    "desert": """2* spot #cc8a50 0~224 118 60~110 14~30; 2* spot #b87840 0~224 122 50~90 8~18
        box #e29e58 0 118 224 128; 16* stroke #b86c36 1 -20~224 130~224 14~40 -2~2
        1~4* stamp cactus 0~224 122~146""",
    "snow": """3~5* stamp mountain 0~224 110~124; 8* spot #eaf0fa -20~244 120 46 14~18
        12* spot #ccd8ea 0~224 130~224 8~22 2; 70* spot white 0~224 0~224 0.8~2 1.4""",
    "lake": """34* peak #285c3e -10~234 94 12 14~36; 60* stroke #82bed8 1 -10~224 98~202 8~26 0
        shape #569640 0 204 60 198 150 202 224 197 224 224 0 224
        30* stroke #326e2e 1.2 0~224 208 -3~3 -22~-12""",
    "city": """skyline #8484a8 150 80 138 0.5; skyline #606078 150 40 84 0.6
        box #a0a0b4 0 150 224 162; stamp lamp 8~50 160; stamp lamp 170~216 160
        stamp lane -30~0 194""",
    # Lights.
    "sunny": "stamp sun 20~200 14~34; 1~3* stamp cloud 0~224 10~60",
    "cloudy": "6~9* stamp cloud 0~224 8~56",
    "sunset": "stamp low-sun 20~200 62; 1~4* stamp red-cloud 0~224 10~60",
    "night": "40* spot white 0~224 0~110 0.4~1.1 0.7; stamp moon 20~200 16~32",
    "indoors": "",
}
